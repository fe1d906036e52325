"""Who a request is from, once that is known, and which limit it counts against."""

from msgspec import Struct

from turnkeep.model.principals import Principal
from turnkeep.model.usage import Source


class Identity(Struct, frozen=True, kw_only=True):
    """A principal, and where it came from: the bundled page (`ui`) or anything else (`api`)."""

    principal: Principal
    source: Source = "api"
    requests_per_minute: int | None = None
    is_operator: bool = False
    """Known from the operator's own configuration (the local key, the bootstrap key): may make and see tenants."""
