"""What goes wrong, and whose fault it is. These names are what the filter's lists are made of."""

from __future__ import annotations

from collections.abc import Mapping


class ValidationException(Exception):
    """The message makes no sense to us. It will make no more sense tomorrow."""


class HttpException(Exception):
    """The gateway answered, and not with what was asked for. `headers` are those of its answer: `Retry-After`, say."""

    status = 0

    def __init__(
        self, reason: str = "", *, status: int | None = None, headers: Mapping[str, str] | None = None
    ) -> None:
        self.status = self.status if status is None else status
        self.headers = dict(headers or {})
        super().__init__(reason or f"the gateway answered {self.status}")


class BadRequestException(HttpException):
    status = 400


class NotFoundException(HttpException):
    status = 404


class UnprocessableEntityException(HttpException):
    status = 422


class ServiceUnavailableException(HttpException):
    status = 503


OF_STATUS: Mapping[int, type[HttpException]] = {
    kind.status: kind
    for kind in (BadRequestException, NotFoundException, UnprocessableEntityException, ServiceUnavailableException)
}

# Those that a setting can name. `TimeoutError` and `OSError` are what a gateway that is slow or away causes.
BY_NAME: Mapping[str, type[Exception]] = {
    kind.__name__: kind
    for kind in (Exception, ValidationException, HttpException, *OF_STATUS.values(), TimeoutError, OSError)
}
