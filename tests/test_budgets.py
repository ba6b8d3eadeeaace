"""What the quick budget makes of the paper's cells."""

from __future__ import annotations

from typing import Dict

import pytest

from experiments.budgets import Budget, budget_for
from experiments.suites import SUITES, Cell, all_cells
from flags.parse import parse

CELLS: Dict[str, Cell] = {cell.path: cell for cell in all_cells()}
SCALED = {
    "num_round",
    "eval_every",
    "num_active_client",
    "num_unlabel",
    "q_unlabel",
}


def quick(path: str) -> Budget:
    return budget_for(CELLS[path], "quick")


def test_full_changes_nothing() -> None:
    budget = budget_for(CELLS["main/cifar10_iid/protofssl_fedavg"], "full")
    assert budget == Budget(name="full", factor=1.0, flags={}, full={})
    assert budget.words == ()


def test_quick_protofssl() -> None:
    """An episode has 30 labelled images and 30 instead of 100 unlabelled ones.

    A client passes 10 episodes of 60 images, three times each, and its 50 labelled
    images once; in full, 10 episodes of 130.
    """
    budget = quick("main/cifar10_iid/protofssl_fedavg")
    assert budget.flags == {
        "num_round": 30,
        "eval_every": 10,
        "num_unlabel": 150,
        "q_unlabel": 30,
        "num_active_client": 2,
    }
    assert budget.full == {
        "num_round": 300,
        "eval_every": 5,
        "num_unlabel": 490,
        "q_unlabel": 100,
        "num_active_client": 5,
    }
    ours, theirs = 30 * 2 * (1800 + 50), 300 * 5 * (3900 + 50)
    assert budget.factor == pytest.approx(ours / theirs)
    assert "--q_unlabel=30" in budget.words


def test_quick_fedavg_has_no_unlabelled_images_to_cut() -> None:
    budget = quick("main/svhn_iid/fedavg")
    assert set(budget.flags) == {"num_round", "eval_every", "num_active_client"}
    assert budget.factor == pytest.approx(0.1 * 0.4)


def test_quick_leaves_all_else_alone() -> None:
    for cell in all_cells():
        assert set(budget_for(cell, "quick").flags) <= SCALED


def test_quick_is_a_small_part_of_every_cell() -> None:
    for cell in all_cells():
        assert 0.005 < budget_for(cell, "quick").factor < 0.11, cell.path


def test_quick_resolves_for_every_cell() -> None:
    """The one warning is that m = 2 clients cannot hand down five prototype sets."""
    for cell in all_cells():
        budget = budget_for(cell, "quick")
        resolved = parse([*cell.flags, *budget.words])
        lowered = [w for w in resolved.warnings if "its default 5 is lowered" in w]
        assert list(resolved.warnings) == lowered, cell.path
        for name, value in budget.flags.items():
            assert getattr(resolved.config, name) == value


@pytest.mark.parametrize("suite", SUITES.values(), ids=lambda suite: suite.name)
def test_quick_keeps_the_order_of_what_a_suite_varies(suite: object) -> None:
    """More unlabelled images, clients, epochs, ... than another cell stay more."""
    flags = ("q_unlabel", "num_label", "local_episode", "helper_cnt", "stddev")
    pairs = [
        (
            parse(cell.flags).config,
            parse([*cell.flags, *budget_for(cell, "quick").words]).config,
        )
        for cell in suite.cells  # type: ignore[attr-defined]
    ]
    for flag in flags:
        for method in {full.method for full, _ in pairs}:
            values = {
                (getattr(full, flag), getattr(cut, flag))
                for full, cut in pairs
                if full.method == method
                and full.helper_policy == "newest"
                or flag != "helper_cnt"
                and full.method == method
            }
            ordered = [after for _, after in sorted(values)]
            assert ordered == sorted(set(ordered)), (flag, method)


def test_quick_keeps_m_where_helpers_are_counted() -> None:
    """As many helpers as clients can be asked for, and not more."""
    for count in (1, 2, 3, 4, 5):
        budget = quick(f"helper_count/m5/protofssl_h{count}")
        assert "num_active_client" not in budget.flags


def test_rounds_can_be_chosen() -> None:
    cell = CELLS["main/cifar10_iid/fedavg"]
    budget = budget_for(cell, "quick", rounds=3)
    assert budget.flags["num_round"] == 3
    assert budget.factor == pytest.approx(0.01 * 0.4)


def test_never_more_rounds_than_the_cell_has() -> None:
    cell = Cell("s", "g", "n", "", ("--dataset=digits", "--num_round=2"))
    assert "num_round" not in budget_for(cell, "quick").flags
