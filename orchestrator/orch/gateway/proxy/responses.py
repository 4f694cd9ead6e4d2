"""Responses that the client gets as the server sent them."""

from __future__ import annotations

from collections.abc import Iterable

from aiohttp import ClientResponse, hdrs, web
from multidict import CIMultiDict

from .headers import passed_on

__all__ = ["PassedResponse", "response_for"]


class PassedResponse(web.StreamResponse):
    """A response that contains only the headers of the server, and those about the connection."""

    _ADDED = (hdrs.CONTENT_TYPE, hdrs.DATE, hdrs.SERVER)

    async def _prepare_headers(self) -> None:
        missing = [name for name in self._ADDED if name not in self.headers]
        await super()._prepare_headers()
        for name in missing:
            self.headers.popall(name, None)


class SwitchingResponse(PassedResponse):
    """The response with which a connection leaves HTTP. What is written after it is sent as it is."""

    _length_check = False


def response_for(upstream: ClientResponse, without: Iterable[str] = ()) -> PassedResponse:
    """Return a response with the status and the headers of `upstream`, without the headers `without`."""
    headers: CIMultiDict[str] = passed_on(upstream.raw_headers)
    for name in without:
        headers.popall(name, None)
    return PassedResponse(status=upstream.status, reason=upstream.reason, headers=headers)
