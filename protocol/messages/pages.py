"""Lists that need more than one answer: the request for the next page, and all pages as one answer. It uses only field
names, so it loads no other message module."""

from typing import Any

import msgspec


def next_page(asked: Any, page: Any, number: int) -> Any:
    """The request, with this number, for the page after an answer to a ListJobs, GetStatus, GetShared, GetTrends,
    GetBalancing or ListBoosts; None: the answer was the last page, `limit` is reached, or the request was for no list.
    A job that ends between two pages may be in both."""
    if not hasattr(asked, "past"):
        return None
    if not hasattr(asked, "limit"):
        return msgspec.structs.replace(asked, id=number, past=page.past) if page.past else None
    left = asked.limit - len(page.jobs)
    if not page.more or not page.jobs or left <= 0:
        return None
    last = page.jobs[-1]
    return msgspec.structs.replace(asked, id=number, limit=left, past=(last.ended, last.submitted, last.id))


def joined(*pages: Any) -> Any:
    """Join consecutive pages of Jobs, Status, Shared, Trends, BalancingStatus or Boosts. Fields that are not lists are
    those of the last page."""
    last = pages[-1]
    lists: dict[str, Any] = {
        name: tuple({_key(view) or object(): view for page in pages for view in getattr(page, name)}.values())
        for name in ("jobs", "groups", "nodes", "offers", "allocations", "boosts")
        if hasattr(last, name)
    }
    if isinstance(getattr(last, "lasting", None), dict):
        lists["lasting"] = {name: seconds for page in pages for name, seconds in page.lasting.items()}
    return msgspec.structs.replace(last, **lists)


def _key(view: Any) -> str:
    """The key of a view in its list: its own id, that of its job (a boost), or the name of its node."""
    if hasattr(view, "id"):
        return str(view.id)
    if hasattr(view, "job"):
        return str(view.job.id)
    return str(view.facts.name if hasattr(view, "facts") else view.node)
