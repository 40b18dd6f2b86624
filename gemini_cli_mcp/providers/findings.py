"""Report what a run finds and uses, while it runs and when it has ended."""

from gemini_cli_mcp.providers.base import Reply
from gemini_cli_mcp.types import Findings, FindingsCallback


class FindingsReporter:
    """Reports the findings of one run, each only once."""

    def __init__(self, report: FindingsCallback) -> None:
        self._report = report
        self._urls: set[str] = set()
        self._tokens = 0

    def report(self, total: Findings) -> None:
        """Report what is new in everything that the run has found and used so far."""
        urls = tuple(url for url in dict.fromkeys(total.urls) if url not in self._urls)
        tokens = max(0, total.tokens - self._tokens)
        if urls or tokens:
            self._urls.update(urls)
            self._tokens += tokens
            self._report(Findings(urls, tokens))

    def report_reply(self, reply: Reply) -> None:
        """Report what is new in the reply of the run."""
        found = [source.url for search in reply.searches for source in search.sources]
        read = [page.url for fetch in reply.fetches for page in fetch.pages]
        self.report(Findings((*found, *read), reply.usage.total_tokens if reply.usage else 0))
