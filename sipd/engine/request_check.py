"""What no state of the engine could serve is refused before it is queued."""

from __future__ import annotations

from sipd.engine.request import Request
from sipd.engine.reuse import worst_case_pages
from sipd.errors import InvalidRequest, OverBudget, PromptTooLong


def check_request(request: Request, context_tokens: int, n_pages: int) -> None:
    """Bounds `max_tokens` by the context; raises InvalidRequest, PromptTooLong or OverBudget."""
    n_prompt = len(request.prompt_ids)
    if n_prompt == 0:
        raise InvalidRequest("input", "empty prompt: there is nothing to run")
    if n_prompt >= context_tokens:
        raise PromptTooLong(n_prompt, context_tokens)
    if request.max_tokens < 1:
        raise InvalidRequest("stop.max_tokens", f"found {request.max_tokens}, wanted at least 1")
    request.max_tokens = min(request.max_tokens, context_tokens - n_prompt)
    needed = worst_case_pages(request)
    if needed > n_pages:
        raise OverBudget(
            f"prompt of {n_prompt} and {request.max_tokens} more tokens need {needed} KV pages, "
            f"the budget holds {n_pages}"
        )
    request.usage.prompt_tokens = n_prompt
