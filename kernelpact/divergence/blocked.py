"""Divergence of two logit tensors in cache-sized row blocks: the CPU and generic path.

Every metric is a sum of non-negative terms, so small drifts do not cancel (DESIGN.md section 8). With
l = log w, u = w − 1 = expm1(l), q = π_inf, p = π_train, a row takes one of two routes:

- **smooth**, where every |l| of the row is below a limit: every smooth f-divergence is Σ ω·h(l) with the weight
  ω = q·u·l ≥ 0, whose own sum is the Jeffreys divergence, and h smooth. h as a polynomial turns all of them into the
  moments Σ ω·l^k, at one product and one sum a moment, instead of a logarithm and an exponential a metric.
- **direct**, everything else: the terms themselves, with the larger of p and q as the factor, so that they neither
  overflow nor meet 0·∞, whatever the drift and wherever one side is masked.

l itself is δ − E_q δ − ln E_q exp(δ − E_q δ) with the last term through expm1 and log1p: accurate relative to
the divergence of the row, not to its logits. Rows run in float32; `_settled32` reads off the sums whether float32
was enough for a relative error of 1e-5, and the rest runs again in float64. Float64 logits start there.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

# Elements of one block: a few scratch arrays of float32 that stay within a core's second-level cache.
BLOCK_ELEMENTS = 1 << 18
_CHUNK = 512  # width of the pieces in which a row's maximum is located

# Stands for infinity where 0·∞ would be NaN: exp(−HUGE) is 0, and HUGE times a probability is finite.
_HUGE = {torch.float32: 1e30, torch.float64: 1e300}

# The smooth route: largest |l|, and there h as a polynomial in l (1, l, l², …; Chebyshev nodes). Relative errors stay
# below 2e-6, 6e-7 (float32) and 4e-12 (float64); tests/test_divergence.py computes them again.
#   reverse_kl   1/l − 1/expm1(l)
#   js           (1 − coth(l/2)·ln cosh(l/2)/(l/2))/4
#   hellinger²   tanh(l/4)/(2l)
#   E_q l²       l/expm1(l)
POLYNOMIALS = {
    torch.float32: {
        0.75: (
            (0.5, -0.083329183837480087, 0.0, 0.0013628508233682409, 0.0),
            (0.125, 0.0, -0.0052066280810868527, 0.0, 0.00024965928347388252),
            (0.125, 0.0, -0.0026039600563520249, 0.0, 6.3807619435646866e-5),
            (1.0, -0.5, 0.083329183837480087, 0.0, -0.0013628508233682409),
        ),
        2.5: (
            (
                *(0.5, -0.083333297460731929, 0.0, 0.0013887731881285402, 0.0, -3.2962999141786551e-5),
                *(0.0, 7.8642554727055916e-7, 0.0, -1.3837916434549166e-8, 0.0),
            ),
            (
                *(0.125, 0.0, -0.0052082040362681568, 0.0, 0.00025999381000366202, 0.0),
                *(-1.3550354676465505e-5, 0.0, 6.5419811611438523e-7, 0.0, -1.9290209976752447e-8),
            ),
            (
                *(0.125, 0.0, -0.0026041648499452925, 0.0, 6.5098307140191759e-5, 0.0),
                *(-1.6416230797220459e-6, 0.0, 3.9672065984746518e-8, 0.0, -7.0009390174786199e-10),
            ),
            (
                *(1.0, -0.5, 0.083333297460731929, 0.0, -0.0013887731881285402, 0.0),
                *(3.2962999141786551e-5, 0.0, -7.8642554727055916e-7, 0.0, 1.3837916434549166e-8),
            ),
        ),
    },
    torch.float64: {
        0.0625: (
            (0.5, -0.083333333175668335, 0.0, 0.0013887274359885273, 0.0),
            (0.125, 0.0, -0.0052083332668293356, 0.0, 0.00026034856267313123),
            (0.125, 0.0, -0.0026041666588142232, 0.0, 6.5096125565682916e-5),
            (1.0, -0.5, 0.083333333175668335, 0.0, -0.0013887274359885273),
        ),
    },
}

# Columns of a run's table, one value a row of logits. `rest` sums exp(a) over all tokens but the likeliest.
_COLUMNS = (
    "xmax", "ymax", "hi", "lo", "center", "shift", "reach", "head_exact", "limit", "lost_inf", "lost_train",
    "rest", "partition", "sum_a", "sum_d", "gamma", "tv", "sum_au", "chi2",
    "m0", "m1", "m2", "m3", "m4", "m5", "m6", "m7", "m8", "m9", "m10",
    "rest_train", "sum_b", "kl", "reverse_kl", "js", "js_lesser", "overlap", "hellinger2", "variance",
)  # fmt: skip
Columns = dict[str, Tensor]


def compare_blocked(train: Tensor, inf: Tensor, temperature: float) -> Columns:
    """Per-row divergences of two [T, V] logit tensors: a dict of float64 [T] tensors, flags as bool.

    Besides the metrics of `Divergence` it holds `center` and `shift`: log w of a token with logit difference δ is
    (δ − center)/temperature − shift. Checks nothing: `kernelpact.divergence.compare` does.
    """
    if torch.float64 in (train.dtype, inf.dtype):
        return _metrics(_run(train, inf, None, torch.float64, temperature), torch.float64, temperature)
    out = _metrics(_run(train, inf, None, torch.float32, temperature), torch.float32, temperature)
    again = (~out.pop("settled")).nonzero().squeeze(1)
    if again.numel():
        precise = _metrics(_run(train, inf, again, torch.float64, temperature), torch.float64, temperature)
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
        self.tops = flat[0].new_empty(rows, pieces + 1)
        self._into = self.tops[:, :pieces], self.tops[:, pieces]
        self._pieces = {
            id(block): (block[:, : pieces * _CHUNK].unflatten(1, (pieces, _CHUNK)), block[:, width - _CHUNK :])
            for block in (self.a, self.d)
            if pieces >= 4
        }

    def row_max(self, block: Tensor, name: str, index: Tensor) -> None:
        """Each row's maximum into a cell and the index of its first occurrence into `index` ([rows, 1]).

        torch.argmax over a whole row costs ten times its maximum, so only the first piece that holds it is searched.
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
    x, y = (t.gather(1, index[:, None]).squeeze(1) for t in (train, inf))
    return (x.float() - y.float()).double() == x.double() - y.double()


class _Block:
    """One block of rows: x, y are [R, V] logits of train and inf."""

    def __init__(self, x: Tensor, y: Tensor, scratch: _Scratch, inverse: float) -> None:
        self.x, self.y, self.scratch, self.inverse = x, y, scratch, inverse
        self.arrays = arrays = scratch.arrays(x.shape[0])
        self.cols, self.by_row = arrays.cells, arrays.by_row
        self.a, self.d, self.e, self.s, self.t = arrays.a, arrays.d, arrays.e, arrays.s, arrays.t
        self.dtype = self.a.dtype
        self.huge = _HUGE[self.dtype]

    def run(self, table: Tensor, index: Tensor) -> None:
        """Sums of the block into table [columns, R], likeliest tokens into index [2, R].

        Differences and exponentials first, then the route that the largest difference allows.
        """
        self.arrays.table.zero_()
        self._differences()
        masked = not math.isfinite(float((self.cols["hi"] - self.cols["lo"]).sum()))
        if masked:
            self._unmask()
        self._inference_side(masked)
        self._center(masked)
        limit = self._route()
        if limit is None:
            self._split(table, index)
            return
        self.cols["limit"].fill_(limit)
        if math.isfinite(limit):
            self._smooth(limit)
        elif self.dtype is torch.float64:
            self._direct()
        else:
            self._apart()
        table.copy_(self.arrays.table)
        index.copy_(self.arrays.index)

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
        no_train, no_inf = torch.isneginf(self.x), torch.isneginf(self.y)
        cols["lost_inf"].copy_((no_inf & ~no_train).any(1))
        cols["lost_train"].copy_((no_train & ~no_inf).any(1))

    def _inference_side(self, masked: bool) -> None:
        """a = (y − max y)/τ, e = exp(a), and with them what the partition sum and the entropy of q need."""
        a, e, head = self.a, self.e, self.arrays.head
        a.sub_(self.by_row["ymax"])
        self._scale(a, masked)
        torch.exp(a, out=e)
        # Without the likeliest token, so that ln(1 + rest) keeps its digits when that token is all but certain.
        e.scatter_(1, head, 0.0)
        self._sum(e, "rest")
        e.scatter_(1, head, 1.0)
        self._sum(a.mul_(e), "sum_a")
        torch.add(self.cols["rest"], 1.0, out=self.cols["partition"])

    def _scale(self, values: Tensor, masked: bool) -> None:
        if self.inverse != 1.0:
            values.mul_(self.inverse)
        if masked:
            values.clamp_(-self.huge, self.huge)

    def _center(self, masked: bool) -> None:
        """d = (δ − c)/τ with c the mean of δ under q, over the common support; 0 where both sides mask."""
        cols, d = self.cols, self.d
        if masked:
            torch.nan_to_num(d, 0.0, 0.0, 0.0, out=self.t).mul_(self.e)
        else:
            torch.mul(self.e, d, out=self.t)
        self._sum(self.t, "sum_d")
        # Held within the range: a constant δ is its own mean, to the bit.
        torch.div(cols["sum_d"], cols["partition"], out=cols["center"]).clamp_(cols["lo"], cols["hi"])
        d.sub_(self.by_row["center"])
        if masked:
            d.nan_to_num_(0.0, self.huge, -self.huge)
        self._scale(d, masked)

    def _route(self) -> float | None:
        """The limit of the polynomials that reach the block's differences, inf where none does, None where rows differ."""
        cols = self.cols
        torch.sub(cols["hi"], cols["center"], out=cols["reach"])
        torch.maximum(cols["reach"], cols["center"] - cols["lo"], out=cols["reach"])
        reach = cols["reach"].mul_(self.inverse)
        nearest = min(POLYNOMIALS[self.dtype])
        if float(reach.amax()) <= 0.96 * nearest:
            return nearest
        routes = self._routes()
        return float(routes[0]) if bool((routes == routes[0]).all()) else None

    def _routes(self) -> Tensor:
        """The same for each row, [R]. Void rows (NaN) take the nearest: nothing of theirs is read."""
        reach, route = self.cols["reach"], torch.zeros_like(self.cols["reach"])
        limits = (*POLYNOMIALS[self.dtype], math.inf)
        for below, limit in zip((-math.inf, *limits), limits, strict=False):
            route.masked_fill_(reach > 0.96 * below, limit)
        return route.masked_fill_(reach.isnan(), limits[0])

    def _split(self, table: Tensor, index: Tensor) -> None:
        """A block whose rows need different routes is several blocks."""
        route = self._routes()
        for limit in route.unique():
            at = (route == limit).nonzero().squeeze(1)
            inner, places = table[:, at], index[:, at]
            _Block(self.x[at], self.y[at], self.scratch, self.inverse).run(inner, places)
            table[:, at], index[:, at] = inner, places

    def _smooth(self, limit: float) -> None:
        """Sums over v = −(1 + γ)·u/2, where 1 + γ = E_q exp(d), and the moments of e·v·l."""
        cols, a, d, e, v, t = self.cols, self.a, self.d, self.e, self.s, self.t
        # expm1(d)/2 = tanh(d/2)/(1 − tanh(d/2)): half the time of expm1, and as accurate.
        torch.mul(d, -0.5, out=v).tanh_()
        v.div_(torch.add(v, 1.0, out=t))
        self._sum(torch.mul(e, v, out=t), "gamma")
        cols["gamma"].div_(cols["partition"])
        torch.log1p(cols["gamma"] * -2.0, out=cols["shift"])
        v.sub_(self.by_row["gamma"])
        d.sub_(self.by_row["shift"])
        self._sum(a.mul_(v), "sum_au")
        e.mul_(v)
        self._sum(torch.abs(e, out=t), "tv")
        self._sum(torch.mul(e, v, out=t), "chi2")
        for power in range(len(POLYNOMIALS[self.dtype][limit][0])):
            self._sum(e.mul_(d), f"m{power}")

    def _apart(self) -> None:
        """Float32 sums for rows plainly apart, where nothing that cancels is small (`_settled32` sees to it)."""
        cols, p, q, d, s, t = self.cols, self.a, self.e, self.d, self.s, self.t
        self._residuals()
        self._train_side(p)
        cols["shift"].copy_(self._shift())
        d.sub_(self.by_row["shift"])
        q.div_(self.by_row["partition"])
        p.div_(cols["rest_train"][:, None] + 1)
        self._sum(torch.mul(p, d, out=s), "kl")
        self._sum(torch.mul(q, d, out=s).neg_(), "reverse_kl")
        self._sum(torch.mul(p, q, out=s).sqrt_(), "overlap")
        # js = ln 2 − ½ Σ [(p + q)·ln(1 + e^−|l|) + min(p, q)·|l|]
        self._sum(torch.minimum(p, q, out=s).mul_(torch.abs(d, out=t)), "js_lesser")
        self._sum(t.neg_().exp_().add_(1.0).log_().mul_(torch.add(p, q, out=s)), "js")
        self._sum(torch.abs(p.sub_(q), out=s), "tv")
        self._sum(d.exp_().sub_(1.0).mul_(p), "chi2")  # (p − q)·(w − 1)

    def _direct(self) -> None:
        """Float64 sums over m = max(p, q), s = 1 − exp(−|l|) and k = 1 − exp(−|l|/2), for any row whatever."""
        self._residuals()
        gamma = self._gamma()
        self._train_side(self.a)
        shift = torch.where(gamma > -0.5, torch.log1p(gamma), self._shift())
        self.cols["shift"].copy_(shift)
        self.d.sub_(self.by_row["shift"])
        self.s.sub_(torch.log1p(self.cols["rest_train"])[:, None])  # ln p
        self.a.copy_(self.y).sub_(self.by_row["ymax"])
        self._scale(self.a, masked=True)
        self.a.sub_(torch.log1p(self.cols["rest"])[:, None])  # ln q
        self._terms()

    def _residuals(self) -> None:
        """Variance of δ/τ under q, and what the centre in use differs from the mean."""
        torch.mul(self.e, self.d, out=self.t)
        self._sum(self.t, "sum_d")
        self._sum(self.t.mul_(self.d), "variance")

    def _gamma(self) -> Tensor:
        """E_q expm1(d), [R]: keeps its digits for rows that hardly differ; NaN where exp would overflow."""
        cols = self.cols
        torch.clamp(self.d, max=80.0, out=self.t).expm1_().mul_(self.e)
        self._sum(self.t, "gamma")
        overflow = (cols["hi"] - cols["center"]) * self.inverse > 80.0
        return (cols["gamma"] / cols["partition"]).masked_fill_(overflow, math.nan)

    def _train_side(self, e: Tensor) -> None:
        """b = (x − max x)/τ into `s`, exp(b) into `e`, and the entropy sums of p."""
        cols, b, top = self.cols, self.s, self.arrays.top
        b.copy_(self.x).sub_(self.by_row["xmax"])
        self._scale(b, masked=True)
        torch.exp(b, out=e)
        e.scatter_(1, top, 0.0)
        self._sum(e, "rest_train")
        e.scatter_(1, top, 1.0)
        self._sum(torch.mul(e, b, out=self.t), "sum_b")

    def _shift(self) -> Tensor:
        """ln E_q exp(d) as the difference of the two partition sums, float64 [R]."""
        xmax, ymax, center = (self.cols[name].double() * self.inverse for name in ("xmax", "ymax", "center"))
        rest_train, rest = (torch.log1p(self.cols[name].double()) for name in ("rest_train", "rest"))
        return (xmax - ymax - center) + (rest_train - rest)

    def _terms(self) -> None:
        """The sums themselves. l is in `d`, ln q in `a`, ln p in `s`; every array is reused once it is spent."""
        sums, l, t = self._sum, self.d, self.t
        log_m = torch.maximum(self.a, self.s, out=self.a)
        m = torch.exp(log_m, out=self.e)
        # hellinger² k², tv s; chi² has (p − q)²/q = s²·m·exp(max(l, 0)).
        k = torch.abs(l, out=self.s).mul_(-0.5).expm1_().neg_()
        sums(torch.mul(m, k, out=t).mul_(k), "hellinger2")
        s = torch.addcmul(k, k, k, value=-0.5, out=k).mul_(2.0)
        sums(torch.mul(m, s, out=t), "tv")
        log_m.add_(torch.clamp(l, min=0.0, out=t)).exp_().mul_(s).mul_(s)
        sums(log_m, "chi2")
        # js: −(2 − s)·ln(1 − s/2) − (1 − s)·|l|; the product first, since |l| may stand for infinity.
        js = torch.abs(l, out=self.a).mul_(torch.sub(s, 1.0, out=t))
        torch.mul(s, -0.5, out=t).log1p_()
        sums(js.addcmul_(s, t).sub_(t, alpha=2.0).mul_(m), "js")
        self._kl_terms(m, s)

    def _kl_terms(self, m: Tensor, s: Tensor) -> None:
        """Both KL as sums of m·(|l| − s) where the larger side leads, and of m·(s − |l|·(1 − s)) where it follows."""
        up, t, cols = self.a, self.t, self.cols
        for leads, follows, sign in (("kl", "reverse_kl", 1.0), ("reverse_kl", "kl", -1.0)):
            torch.mul(self.d, sign, out=up).clamp_(min=0.0)
            # min(s, up) is s on this side's tokens and 0 elsewhere, since s <= |l|.
            torch.minimum(s, up, out=t).sub_(up).mul_(m)
            cols[leads].sub_(t.sum(1))
            torch.minimum(s, up, out=t).sub_(1.0).mul_(up).add_(torch.minimum(s, up, out=up)).mul_(m)
            cols[follows].add_(t.sum(1))


def _metrics(table: Columns, dtype: torch.dtype, temperature: float) -> Columns:
    """The metrics of each row from its sums, float64 [T]; with `settled` where the sums are float32."""
    cols = {name: column.double() for name, column in table.items() if not name.startswith(("top", "head"))}
    direct = torch.isinf(cols["limit"])
    smooth, exact = _smooth_metrics(cols, dtype), _direct_metrics(cols, dtype)
    out = {name: torch.where(direct, exact[name], smooth[name]) for name in smooth}
    out["center"] = cols["center"]
    out["entropy_inf"] = torch.log1p(cols["rest"]) - cols["sum_a"] / (1 + cols["rest"])
    out["top1_agreement"] = (table["top"] == table["head"]).double()
    hi, lo = ((cols[name] - cols["center"]) / temperature - out["shift"] for name in ("hi", "lo"))
    out["max_dlogp"] = torch.maximum(hi, -lo)
    out["drift"] = (cols["hi"] - cols["lo"]) / (2 * temperature)
    out["drift_max"] = hi + out["reverse_kl"]  # E_q l = −KL(q‖p)
    if dtype is torch.float32:
        cols["head_exact"] = table["head_exact"].double()
        out["settled"] = _settled32(cols, out, temperature)
    return limits(out, cols)


def _smooth_metrics(cols: Columns, dtype: torch.dtype) -> Columns:
    partition = 1 + cols["rest"]
    growth = 1 - 2 * cols["gamma"]
    scale = 1 / (partition * growth)
    moments = torch.stack([cols[f"m{power}"] for power in range(11)])
    sums = moments.new_full((4, moments.shape[1]), math.nan)
    for limit, rows in POLYNOMIALS[dtype].items():
        weights = torch.tensor(rows, dtype=torch.float64, device=moments.device)
        sums = torch.where(cols["limit"] == moments.new_tensor(limit, dtype=dtype), weights @ moments[: len(rows[0])], sums)
    reverse_kl, js, hellinger2, second = sums * (-2 * scale)
    kl = -2 * scale * cols["m0"] - reverse_kl
    cross = torch.log1p(cols["rest"]) - (cols["sum_a"] / partition - 2 * scale * cols["sum_au"])
    return {
        "shift": torch.log1p(-2 * cols["gamma"]),
        "tv": cols["tv"] * scale,
        "chi2": 4 * cols["chi2"] * scale / growth,
        "kl": kl,
        "reverse_kl": reverse_kl,
        "js": js,
        "hellinger": hellinger2.sqrt(),
        "drift_rms": (second - reverse_kl**2).sqrt(),
        "entropy_train": cross - kl,
    }


def _direct_metrics(cols: Columns, dtype: torch.dtype) -> Columns:
    partition, train = 1 + cols["rest"], 1 + cols["rest_train"]
    variance = cols["variance"] / partition - (cols["sum_d"] / partition) ** 2
    hellinger2, js = cols["hellinger2"] / 2, cols["js"] / 2
    if dtype is torch.float32:
        hellinger2, js = 1 - cols["overlap"], math.log(2) - (cols["js"] + cols["js_lesser"]) / 2
    return {
        "shift": cols["shift"],
        "tv": cols["tv"] / 2,
        "chi2": cols["chi2"],
        "kl": cols["kl"],
        "reverse_kl": cols["reverse_kl"],
        "js": js,
        "hellinger": hellinger2.clamp(min=0).sqrt(),
        "drift_rms": variance.clamp(min=0).sqrt(),
        "entropy_train": torch.log1p(cols["rest_train"]) - cols["sum_b"] / train,
    }


def _settled32(cols: Columns, out: Columns, temperature: float) -> Tensor:
    """Whether float32 gave the row to a relative error of 1e-5, bool [T]; what fails runs again in float64.

    Rounding of a difference δ is 2⁻²⁴|δ|, which must be small beside the centred differences: beside their range,
    and on the tokens with mass beside their mean. `rest` and `tv` near 0 mean that tokens of mass e⁻³⁰ decide, where
    float32's exponential is at its limit.
    """
    drift, tv = out["drift"], out["tv"]
    offset = torch.maximum(cols["hi"].abs(), cols["lo"].abs()) / temperature
    mass = torch.where(cols["head_exact"] > 0, cols["rest"] / (1 + cols["rest"]), 1.0)
    fine = (offset <= 16 * drift) & (mass * cols["center"].abs() / temperature <= 30 * tv)
    fine &= (drift >= 1e-10) & (tv >= 1e-13 * drift)
    smooth = (fine | (offset == 0)) & (out["max_dlogp"] <= cols["limit"])
    # Sums of that route carry 1e-7 of themselves, or of 1: kept where the row is plainly apart.
    apart = fine & (tv >= 0.05) & (out["js"] >= 0.02) & (out["hellinger"] >= 0.15)
    apart &= (drift <= 20) & (out["max_dlogp"] <= 40) & (cols["rest_train"] >= 1e-13)
    finite = torch.stack([torch.isfinite(value) for value in out.values()]).all(0)
    void = ~(torch.isfinite(cols["xmax"]) & torch.isfinite(cols["ymax"]))
    return torch.where(torch.isinf(cols["limit"]), apart, smooth) & finite & (cols["rest"] >= 1e-13) | void


def limits(out: Columns, cols: Columns) -> Columns:
    """The values that a masked token forces, and NaN with its flag where a side is no distribution."""
    inf, nan = float("inf"), float("nan")
    lost_inf, lost_train = cols["lost_inf"] > 0, cols["lost_train"] > 0
    empty = torch.isneginf(cols["xmax"]) ^ torch.isneginf(cols["ymax"])
    void = ~(torch.isfinite(cols["xmax"]) & torch.isfinite(cols["ymax"]))
    out["ess"] = 1 / (1 + out["chi2"])
    forced = {
        "kl": lost_inf, "chi2": lost_inf, "reverse_kl": lost_train, "drift_rms": lost_train,
        "drift": lost_inf | lost_train, "max_dlogp": lost_inf | lost_train, "drift_max": lost_inf | lost_train,
    }  # fmt: skip
    for name, where in forced.items():
        out[name] = out[name].masked_fill(where, inf)
    out["ess"] = out["ess"].masked_fill(lost_inf, 0.0)
    for name in out.keys() - {"settled"}:
        out[name] = out[name].masked_fill(void, nan)
    one_sided = empty & ~(torch.isnan(cols["xmax"] + cols["ymax"]) | torch.isposinf(cols["xmax"] + cols["ymax"]))
    for name in ("drift", "max_dlogp", "drift_max"):
        out[name] = out[name].masked_fill(one_sided, inf)
    out["support_violation"] = (lost_inf | lost_train) & ~void | one_sided
    out["nonfinite"] = void
    return out
