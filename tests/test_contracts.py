"""The suite: every contract, every pair it names, every dtype and relation, one item each.

The cases are laid out by the plugin from `--contract` (all shipped contracts, with small budgets, without it).
"""


def test_contract(contract_case, contract_judge):
    """The pair keeps the promises of its contract on every input that the search finds."""
    contract_judge(contract_case)
