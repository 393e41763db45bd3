"""Divergence of two logit tensors in cache-sized row blocks: the CPU and generic path.

Every metric is a sum of non-negative terms, so small drifts do not cancel (DESIGN.md section 8). With p =
π_train, q = π_inf, l = log w and u = w − 1 = expm1(l), a row takes one of three routes:

- **smooth**, where every |l| of the row is below a limit: each smooth f-divergence is Σ ω·h(l) with the
  weight ω = q·u·l ≥ 0, whose own sum is the Jeffreys divergence. h as a polynomial turns all of them into
  the moments Σ ω·l^k, at one product and one sum a moment, instead of a logarithm and an exponential a
  metric.
- **apart**, in float32 only: rows so far apart that plain sums lose nothing.
- **direct**, in float64 only, everything else: the terms themselves, with the larger of p and q as the
  factor, so that they neither overflow nor meet 0·∞, whatever the drift and wherever one side is masked.

l itself is δ − E_q δ − ln E_q exp(δ − E_q δ), the last term through expm1 and log1p: accurate relative to
the divergence of the row, not to its logits. Rows run in float32; `metrics._settled32` reads off the sums
whether that was enough for a relative error of 1e-5, and the rest runs again in float64. Float64 logits
start there.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from kernelpact.divergence.metrics import POLYNOMIALS, Columns, at_tokens, metrics

# Elements of one block: a few scratch arrays of float32 that stay within a core's second-level cache.
BLOCK_ELEMENTS = 1 << 18
_CHUNK = 512  # width of the pieces in which a row's maximum is located

# Stands for infinity where 0·∞ would be NaN: exp(−HUGE) is 0, and HUGE times a probability is finite.
_HUGE = {torch.float32: 1e30, torch.float64: 1e300}
# ln of the least probability, relative to the likeliest token's, that is not taken for 0.
_FLOOR = {torch.float32: -70.0, torch.float64: -700.0}

# Columns of a run's table, one value a row of logits. `rest` sums exp(a) over all tokens but the likeliest.
_COLUMNS = (
    "xmax", "ymax", "hi", "lo", "center", "shift", "reach", "head_exact", "limit", "unit",
    "lost_inf", "lost_train",
    "rest", "partition", "sum_a", "sum_d", "gamma", "tv", "sum_au", "chi2",
    "m0", "m1", "m2", "m3", "m4", "m5", "m6", "m7", "m8", "m9", "m10",
    "rest_train", "sum_b", "kl", "reverse_kl", "forward", "js", "js_lesser", "overlap",
    "hellinger2", "variance", "residual",
)  # fmt: skip


def compare_blocked(train: Tensor, inf: Tensor, temperature: float) -> Columns:
    """Per-row divergences of two [T, V] logit tensors: a dict of float64 [T] tensors, flags as bool.

    Besides the metrics of `Divergence` it holds `center` and `shift`: log w of a token with logit
    difference δ is (δ − center)/temperature − shift. Checks nothing: `kernelpact.divergence.compare`
    does.
    """
    if torch.float64 in (train.dtype, inf.dtype):
        return metrics(_run(train, inf, None, torch.float64, temperature), torch.float64, temperature)
    out = metrics(_run(train, inf, None, torch.float32, temperature), torch.float32, temperature)
    again = (~out.pop("settled")).nonzero().squeeze(1)
    if again.numel():
        precise = metrics(_run(train, inf, again, torch.float64, temperature), torch.float64, temperature)
        for name, column in out.items():
            column[again] = precise[name]
    return out


class _Arrays:
    """Scratch for blocks of `rows` rows: views [rows, V] of flat arrays, and one cell [rows] a column.

    Made once a run and reused by every block, so that a block allocates nothing of its own size.
    """

    def __init__(self, flat: list[Tensor], rows: int, width: int) -> None:
        self.a, self.d, self.e, self.s, self.t = (f[: rows * width].view(rows, width) for f in flat)
        self.table = flat[0].new_zeros(len(_COLUMNS), rows)
        self.cells: Columns = dict(zip(_COLUMNS, self.table.unbind(0), strict=True))
        self.by_row = {name: cell[:, None] for name, cell in self.cells.items()}
        self.index = torch.zeros(2, rows, dtype=torch.long, device=flat[0].device)
        self.top, self.head = self.index[:, :, None].unbind(0)
        pieces = width // _CHUNK
        # exp of the floor by the same vectorised code, so that the difference is 0.
        self.least = torch.full_like(flat[0][:64], _FLOOR[flat[0].dtype]).exp_()[0].clone()
        self.tops = flat[0].new_empty(rows, pieces + 1)
        self._into = self.tops[:, :pieces], self.tops[:, pieces]
        self._pieces = {
            id(block): (
                block[:, : pieces * _CHUNK].view(rows, pieces, _CHUNK),
                block[:, width - _CHUNK :],
            )
            for block in (self.a, self.d)
            if pieces >= 4
        }

    def row_max(self, block: Tensor, name: str, index: Tensor) -> None:
        """Each row's maximum into a cell and the index of its first occurrence into `index` ([rows, 1]).

        torch.argmax over a whole row costs ten times its maximum, so only the first piece that holds it
        is searched.
        """
        if not self._pieces:
            torch.amax(block, 1, out=self.cells[name])
            torch.argmax(block, 1, keepdim=True, out=index)
            return
        body, tail = self._pieces[id(block)]
        torch.amax(body, 2, out=self._into[0])
        # The last piece overlaps the one before: what it holds ahead of its own tail is found there first.
        torch.amax(tail, 1, out=self._into[1])
        top, piece = self.tops.max(1)
        self.cells[name].copy_(top)
        self._search(block, piece, index)

    def _search(self, block: Tensor, piece: Tensor, index: Tensor) -> None:
        if block.shape[0] == 1:  # plain slices cost less than a gather
            start = min(int(piece) * _CHUNK, block.shape[1] - _CHUNK)
            index.fill_(start + int(block[0, start : start + _CHUNK].argmax()))
            return
        begin = piece.mul_(_CHUNK).clamp_(max=block.shape[1] - _CHUNK)[:, None]
        window = begin + torch.arange(_CHUNK, device=block.device)
        torch.add(block.gather(1, window).argmax(1, keepdim=True), begin, out=index)


class _Scratch:
    """The flat arrays of a run, and the views of them for each height of block."""

    def __init__(self, rows: int, width: int, dtype: torch.dtype, device: torch.device) -> None:
        self._flat = [torch.empty(rows * width, dtype=dtype, device=device) for _ in range(5)]
        self._width = width
        self._made: dict[int, _Arrays] = {}

    def arrays(self, rows: int) -> _Arrays:
        """Scratch for blocks of this many rows."""
        if rows not in self._made:
            self._made[rows] = _Arrays(self._flat, rows, self._width)
        return self._made[rows]


@torch.no_grad()
def _run(train: Tensor, inf: Tensor, rows: Tensor | None, dtype: torch.dtype, temperature: float) -> Columns:
    """The table of sums for the rows named (None: all), block by block, in `dtype`."""
    count, width = (train.shape[0] if rows is None else rows.numel()), train.shape[1]
    height = min(max(1, BLOCK_ELEMENTS // width), max(count, 1))
    table = torch.zeros(len(_COLUMNS), count, dtype=dtype, device=train.device)
    index = torch.zeros(2, count, dtype=torch.long, device=train.device)
    scratch = _Scratch(height, width, dtype, train.device)
    with torch.inference_mode():
        for start in range(0, count, height):
            at = slice(start, min(start + height, count))
            pick = at if rows is None else rows[at]
            _Block(train[pick], inf[pick], scratch, 1.0 / temperature).run(table[:, at], index[:, at])
    cols = dict(zip(_COLUMNS, table.unbind(0), strict=True)) | {"top": index[0], "head": index[1]}
    if dtype is torch.float32:
        cols["head_exact"].copy_(_exact_at(train, inf, cols["head"]))
    return cols


def _exact_at(train: Tensor, inf: Tensor, index: Tensor) -> Tensor:
    """Whether float32 holds the logit difference of token `index` of each row exactly."""
    x, y = at_tokens(train, index), at_tokens(inf, index)
    return (x.float() - y.float()).double() == x - y


class _Block:
    """One block of rows: x, y are [R, V] logits of train and inf."""

    def __init__(self, x: Tensor, y: Tensor, scratch: _Scratch, inverse: float) -> None:
        self.x, self.y, self.scratch, self.inverse = x, y, scratch, inverse
        self.arrays = arrays = scratch.arrays(x.shape[0])
        self.cols, self.by_row = arrays.cells, arrays.by_row
        self.a, self.d, self.e, self.s, self.t = arrays.a, arrays.d, arrays.e, arrays.s, arrays.t
        self.dtype = self.a.dtype
        self.huge, self.floor = _HUGE[self.dtype], _FLOOR[self.dtype]
        self.least = arrays.least

    def run(self, table: Tensor, index: Tensor) -> None:
        """Sums of the block into table [columns, R], likeliest tokens into index [2, R].

        Differences and exponentials first, then the route that the largest difference allows.
        """
        self.arrays.table.zero_()
        self._differences()
        masked = not math.isfinite(float((self.cols["hi"] - self.cols["lo"]).sum()))
        if masked:
            self._unmask()
        self._inference_side()
        self._center(masked)
        limit = self._route()
        if limit is None:
            self._split(table, index)
            return
        self.cols["limit"].fill_(limit)
        if math.isfinite(limit):
            self._smooth(masked, limit)
        elif self.dtype is torch.float64:
            self._direct(masked)
        else:
            self._apart(masked)
        table.copy_(self.arrays.table)
        index.copy_(self.arrays.index)

    def _unit(self, powers: int) -> float:
        """The power of two in which the differences are counted, so that their powers are no subnormals.

        The highest power reaches 2^100, and stays above 2^-126 for tokens whose difference is a millionth of that.
        """
        reach = float(self.cols["reach"].amax())
        return 2.0 ** (math.ceil(math.log2(max(reach, 1e-30))) - 100 // powers)

    def _sum(self, values: Tensor, name: str) -> None:
        torch.sum(values, 1, out=self.cols[name])

    def _differences(self) -> None:
        """a = y, d = x − y, their extremes, and the likeliest token on each side."""
        a, d, arrays = self.a.copy_(self.y), self.d.copy_(self.x), self.arrays
        arrays.row_max(a, "ymax", arrays.head)
        arrays.row_max(d, "xmax", arrays.top)
        d.sub_(a)
        torch.amax(d, 1, out=self.cols["hi"])
        torch.amin(d, 1, out=self.cols["lo"])

    def _unmask(self) -> None:
        """Extremes of δ over the common support, and which side masks what the other does not."""
        cols, inf = self.cols, float("inf")
        torch.nan_to_num(self.d, nan=-inf, posinf=inf, neginf=-inf, out=self.s)
        torch.amax(self.s, 1, out=cols["hi"])
        torch.nan_to_num(self.d, nan=inf, posinf=inf, neginf=-inf, out=self.s)
        torch.amin(self.s, 1, out=cols["lo"])
        if not bool(torch.isinf(cols["hi"] - cols["lo"]).any()):
            return
        no_train, no_inf = torch.isneginf(self.s.copy_(self.x)), torch.isneginf(self.t.copy_(self.y))
        cols["lost_inf"].copy_((no_inf & ~no_train).any(1))
        cols["lost_train"].copy_((no_train & ~no_inf).any(1))

    def _inference_side(self) -> None:
        """a = (y − max y)/τ, e = exp(a), and with them what the partition sum and the entropy of q need."""
        self.a.sub_(self.by_row["ymax"])
        self._exponentials(self.a, self.e, self.arrays.head, "rest")
        self._sum(self.a.mul_(self.e), "sum_a")
        torch.add(self.cols["rest"], 1.0, out=self.cols["partition"])

    def _exponentials(self, a: Tensor, e: Tensor, likeliest: Tensor, rest: str) -> None:
        """e = exp(a/τ), 0 below the floor, and its sum over all tokens but the likeliest.

        Without that token ln(1 + rest) keeps its digits where it is all but certain. Below the floor lies no
        mass that counts, but exp, and products with its subnormal results, take a hundred times as long.
        """
        if self.inverse != 1.0:
            a.mul_(self.inverse)
        torch.exp(a.clamp_(min=self.floor), out=e).sub_(self.least)
        e.scatter_(1, likeliest, 0.0)
        self._sum(e, rest)
        e.scatter_(1, likeliest, 1.0)

    def _center(self, masked: bool) -> None:
        """The mean of δ under q, over the common support, and how far δ reaches from it, over τ."""
        cols, d = self.cols, self.d
        if masked:
            torch.nan_to_num(d, 0.0, 0.0, 0.0, out=self.t).mul_(self.e)
        else:
            torch.mul(self.e, d, out=self.t)
        self._sum(self.t, "sum_d")
        # Held within the range: a constant δ is its own mean, to the bit.
        torch.div(cols["sum_d"], cols["partition"], out=cols["center"]).clamp_(cols["lo"], cols["hi"])
        torch.sub(cols["hi"], cols["center"], out=cols["reach"])
        torch.maximum(cols["reach"], cols["center"] - cols["lo"], out=cols["reach"]).mul_(self.inverse)
        if masked:  # a void row must not decide the others' route
            cols["reach"].nan_to_num_(0.0, math.inf)

    def _shifted(self, masked: bool, unit: float) -> None:
        """d = (δ − center)/(τ·unit), 0 where both sides mask. `unit` is a power of two and rounds nothing."""
        d = self.d.sub_(self.by_row["center"])
        if masked:
            d.nan_to_num_(0.0, self.huge, -self.huge)
        if self.inverse != unit:
            d.mul_(self.inverse / unit)
        if masked or self.dtype is torch.float64:
            d.clamp_(-self.huge, self.huge)

    def _route(self) -> float | None:
        """Limit of the polynomials that reach the block's differences: inf if none, None if rows differ."""
        least, most = (self._limit(float(edge)) for edge in torch.aminmax(self.cols["reach"]))
        return most if least == most else None

    def _limit(self, reach: float) -> float:
        """The same for one reach."""
        return next((limit for limit in POLYNOMIALS[self.dtype] if reach <= 0.96 * limit), math.inf)

    def _split(self, table: Tensor, index: Tensor) -> None:
        """A block whose rows need different routes is several blocks."""
        routes = torch.tensor([self._limit(reach) for reach in self.cols["reach"].tolist()])
        for limit in routes.unique().tolist():  # type: ignore[no-untyped-call]
            at = (routes == limit).nonzero().squeeze(1).to(self.x.device)
            inner, places = table[:, at], index[:, at]
            _Block(self.x[at], self.y[at], self.scratch, self.inverse).run(inner, places)
            table[:, at], index[:, at] = inner, places

    def _smooth(self, masked: bool, limit: float) -> None:
        """Sums over v = −(1 + γ)·u/2, where 1 + γ = E_q exp(d·unit), and moments of e·v in l/unit."""
        cols, a, d, e, v, t = self.cols, self.a, self.d, self.e, self.s, self.t
        rows = POLYNOMIALS[self.dtype][limit]
        unit = self._unit(len(rows[0]))
        cols["unit"].fill_(unit)
        self._shifted(masked, unit)
        # expm1(d)/2 = tanh(d/2)/(1 − tanh(d/2)): half the time of expm1, and as accurate.
        torch.mul(d, -0.5 * unit, out=v).tanh_()
        v.div_(torch.add(v, 1.0, out=t))
        self._sum(torch.mul(e, v, out=t), "gamma")
        cols["gamma"].div_(cols["partition"])
        torch.log1p(cols["gamma"] * -2.0, out=cols["shift"])
        v.sub_(self.by_row["gamma"])
        d.sub_(self.by_row["shift"] / unit)
        self._sum(a.mul_(v), "sum_au")
        e.mul_(v)
        self._sum(torch.abs(e, out=t), "tv")
        if len(rows) == 4:
            self._sum(torch.mul(e, v, out=t), "chi2")
        for power in range(len(rows[0])):
            self._sum(e.mul_(d), f"m{power}")

    def _apart(self, masked: bool) -> None:
        """Float32 sums for rows plainly apart, where nothing that cancels is small: see `_settled32`."""
        cols, p, q, d, s, t = self.cols, self.a, self.e, self.d, self.s, self.t
        self._shifted(masked, 1.0)
        self._sum(torch.mul(q, d, out=t).mul_(d), "variance")
        self._train_side(p)
        cols["shift"].copy_(self._shift())
        d.sub_(self.by_row["shift"])
        q.mul_(1 / self.by_row["partition"])
        p.mul_(1 / (self.by_row["rest_train"] + 1))
        self._sum(torch.mul(p, d, out=s), "kl")
        self._sum(torch.mul(q, d, out=s), "forward")
        # js = ln 2 − ½ Σ [(p + q)·ln(1 + e^−|l|) + min(p, q)·|l|]
        self._sum(torch.minimum(p, q, out=s).mul_(torch.abs(d, out=t)), "js_lesser")
        self._sum(t.neg_().exp_().add_(1.0).log_().mul_(torch.add(p, q, out=s)), "js")
        self._sum(torch.sqrt(p, out=s).mul_(torch.sqrt(q, out=t)), "overlap")
        self._sum(torch.abs(p.sub_(q), out=s), "tv")
        self._sum(d.exp_().sub_(1.0).mul_(p), "chi2")  # (p − q)·(w − 1)

    def _direct(self, masked: bool) -> None:
        """Float64 sums over m = max(p, q), s = 1 − exp(−|l|) and k = 1 − exp(−|l|/2), for any row."""
        self._shifted(masked, 1.0)
        torch.mul(self.e, self.d, out=self.t)
        self._sum(self.t, "residual")  # what the mean is off the centre
        self._sum(self.t.mul_(self.d), "variance")
        gamma = self._gamma()
        self._train_side(self.a)
        shift = torch.where(gamma > -0.5, torch.log1p(gamma), self._shift())
        self.cols["shift"].copy_(shift)
        self.d.sub_(self.by_row["shift"])
        self._log_probability(self.s, self.x, "xmax", "rest_train")
        self._log_probability(self.a, self.y, "ymax", "rest")
        self._terms()

    def _gamma(self) -> Tensor:
        """E_q expm1(d), [R]: keeps its digits for rows that hardly differ; NaN where exp would overflow."""
        cols = self.cols
        torch.clamp(self.d, max=80.0, out=self.t).expm1_().mul_(self.e)
        self._sum(self.t, "gamma")
        overflow = (cols["hi"] - cols["center"]) * self.inverse > 80.0
        return (cols["gamma"] / cols["partition"]).masked_fill_(overflow, math.nan)

    def _train_side(self, e: Tensor) -> None:
        """b = (x − max x)/τ into `s`, exp(b) into `e`, and the entropy sums of p."""
        b = self.s.copy_(self.x).sub_(self.by_row["xmax"])
        self._exponentials(b, e, self.arrays.top, "rest_train")
        self._sum(torch.mul(e, b, out=self.t), "sum_b")

    def _log_probability(self, out: Tensor, logits: Tensor, top: str, rest: str) -> None:
        out.copy_(logits).sub_(self.by_row[top]).mul_(self.inverse).clamp_(min=-self.huge)
        out.sub_(torch.log1p(self.cols[rest])[:, None])

    def _shift(self) -> Tensor:
        """ln E_q exp(d) as the difference of the two partition sums, float64 [R]."""
        xmax, ymax, center = (self.cols[name].double() * self.inverse for name in ("xmax", "ymax", "center"))
        rest_train, rest = (torch.log1p(self.cols[name].double()) for name in ("rest_train", "rest"))
        return (xmax - ymax - center) + (rest_train - rest)

    def _terms(self) -> None:
        """The sums themselves, from l in `d`, ln q in `a`, ln p in `s`; arrays are reused once spent."""
        sums, log_w, t = self._sum, self.d, self.t
        log_m = torch.maximum(self.a, self.s, out=self.a)
        m = torch.exp(torch.clamp(log_m, min=self.floor, out=self.e), out=self.e).sub_(self.least)
        # hellinger² k², tv s; chi² has (p − q)²/q = s²·m·exp(max(l, 0)).
        k = torch.abs(log_w, out=self.s).mul_(-0.5).expm1_().neg_()
        sums(torch.mul(m, k, out=t).mul_(k), "hellinger2")
        s = torch.addcmul(k, k, k, value=-0.5, out=k).mul_(2.0)
        sums(torch.mul(m, s, out=t), "tv")
        log_m.add_(torch.clamp(log_w, min=0.0, out=t)).exp_().mul_(s).mul_(s)
        sums(log_m, "chi2")
        # js: −(2 − s)·ln(1 − s/2) − (1 − s)·|l|; the product first, since |l| may stand for infinity.
        js = torch.abs(log_w, out=self.a).mul_(torch.sub(s, 1.0, out=t))
        torch.mul(s, -0.5, out=t).log1p_()
        sums(js.addcmul_(s, t).sub_(t, alpha=2.0).mul_(m), "js")
        self._kl_terms(m, s)

    def _kl_terms(self, m: Tensor, s: Tensor) -> None:
        """Both KL as sums of m·(|l| − s) on the side that leads, of m·(s − |l|·(1 − s)) on the other."""
        up, t, cols = self.a, self.t, self.cols
        for leads, follows, sign in (("kl", "reverse_kl", 1.0), ("reverse_kl", "kl", -1.0)):
            torch.mul(self.d, sign, out=up).clamp_(min=0.0)
            # min(s, up) is s on this side's tokens and 0 elsewhere, since s <= |l|.
            torch.minimum(s, up, out=t).sub_(up).mul_(m)
            cols[leads].sub_(t.sum(1))
            torch.minimum(s, up, out=t).sub_(1.0).mul_(up).add_(torch.minimum(s, up, out=up)).mul_(m)
            cols[follows].add_(t.sum(1))
