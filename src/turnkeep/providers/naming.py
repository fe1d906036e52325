"""How models are named: `provider/model`, where the provider has more than one."""

from turnkeep.errors import InvalidRequest


def check_full_name(model: str) -> None:
    """Refuses what is not `provider/model`, the second in characters that one can see and without spaces around it."""
    provider, _, own = model.partition("/")
    if not own or own != own.strip() or not own.isprintable():
        raise InvalidRequest(
            f"{model!r} does not name a model: write {provider}/ and then the provider's own name of it, without "
            "spaces around it. GET /v1/models lists what there is."
        )
