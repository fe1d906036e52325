"""The public names: few and sorted."""

import turnkeep


def test_they_are_sorted_and_exist() -> None:
    names = list(getattr(turnkeep, "__all__", []))
    assert names == sorted(names)
    assert all(hasattr(turnkeep, name) for name in names)


def test_they_are_few() -> None:
    public = {name for name, value in vars(turnkeep).items() if not name.startswith("_") and not _is_module(value)}
    assert public <= set(getattr(turnkeep, "__all__", []))
    assert len(public) <= 20


def _is_module(value: object) -> bool:
    return type(value).__name__ == "module"
