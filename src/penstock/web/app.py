"""Routes: pages, forms, events, JSON, metrics. Not here: how pages look (`pages.py`), the socket
and the process (`server.py`).

Server-sent events are the regions of a page that have changed, sent after each reading.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from http import HTTPStatus
from importlib.resources import files
from typing import Any
from urllib.parse import parse_qs

import msgspec
import structlog
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import (
    HTMLResponse,
    RedirectResponse,
    Response,
    StreamingResponse,
)
from starlette.routing import Route

from penstock.control.consumers import consumer_process
from penstock.control.pipeline.actions import give_action
from penstock.control.tables import table_commands
from penstock.model import PenstockError, TableName
from penstock.web.access import Access, Guard, Hosts, same_origin
from penstock.web.feed_reading import StageWatch
from penstock.web.feed_reading import as_dict as stage_dict
from penstock.web.metrics import CONTENT_TYPE, expose
from penstock.web.pages import AnyWatch, Page, Pages, announcements, index_context, page_of
from penstock.web.reading import PipelineWatch, as_dict
from penstock.web.tasks import TaskKind, Tasks

logger = structlog.get_logger()
FORM_BYTES_MAX = 10_000
FRESH_WAIT_MAX_S = 2.0  # the page shows that a server hangs; it must not hang itself
FRESH_POLL_S = 0.02
ACTIONS = {"pause": "PAUSE", "resume": "RUN"}
TABLE_ACTIONS = {
    "add": (table_commands.add, "is being added"),
    "remove": (table_commands.remove, "is being removed"),
    "pause": (table_commands.pause, "is being paused"),
    "resume": (table_commands.resume, "goes on"),
    "resync": (table_commands.resync, "is being copied again"),
}
CONSUMER_ACTIONS = {
    "pause": (consumer_process.pause, "is paused"),
    "resume": (consumer_process.resume, "goes on"),
}
STATIC = {
    "penstock.css": "text/css; charset=utf-8",
    "penstock.js": "text/javascript; charset=utf-8",
    "icon.svg": "image/svg+xml",
}


class NoTableNamed(PenstockError):
    """A form for one table names no table, or not as schema.table."""

    code = "WB07"


class Interface:
    """The web interface over some pipelines. `app` is its ASGI application."""

    def __init__(
        self,
        watches: Sequence[AnyWatch],
        *,
        access: Access,
        hosts: Hosts,
        cookie: str = "penstock_session",
        ended: Callable[[], bool] = lambda: False,
    ) -> None:
        """Set up the routes.

        Args:
            watches: One per pipeline; their pipelines' names differ.
            access: The check of visitors.
            hosts: The names under which we may be called.
            cookie: The name of the session's cookie.
            ended: Returns whether streams of events should end.
        """
        self.watches = {watch.config.pipeline.name: watch for watch in watches}
        self.access = access
        self.tasks = Tasks()
        self.pages = Pages()
        self._ended = ended
        self._cookie = cookie
        name = "/pipelines/{name}"
        routes = [
            Route("/", self.index),
            Route("/events", self.index_events),
            Route("/login", self.login_page),
            Route("/login", self.login, methods=["POST"]),
            Route("/logout", self.logout, methods=["POST"]),
            Route(name, self.pipeline),
            Route(name + "/events", self.pipeline_events),
            Route(name + "/tasks/{kind}", self.begin_task, methods=["POST"]),
            Route(name + "/tasks/{kind}/stop", self.stop_task, methods=["POST"]),
            Route(name + "/actions/{action}", self.act, methods=["POST"]),
            Route(name + "/tables/{action}", self.act_on_table, methods=["POST"]),
            Route(name + "/consumers/{action}", self.act_on_consumer, methods=["POST"]),
            Route("/api/pipelines", self.api_pipelines),
            Route("/api/pipelines/{name}", self.api_pipeline),
            Route("/metrics", self.metrics),
            Route("/static/{file}", static),
        ]
        starlette = Starlette(
            routes=routes,
            exception_handlers={
                HTTPException: self.on_http,
                PenstockError: self.on_error,
                Exception: self.on_defect,
            },
        )
        self.app = Guard(starlette, hosts=hosts, access=access, cookie=cookie)

    def start(self) -> None:
        """Begin to look at the pipelines."""
        for watch in self.watches.values():
            watch.start()

    def close(self) -> None:
        """Stop looking, and end every task that a button began."""
        self.tasks.close()
        for watch in self.watches.values():
            watch.close()

    # --- reading ----------------------------------------------------------------------------------

    async def index(self, request: Request) -> Response:
        """Return the list of pipelines."""
        watches = list(self.watches.values())
        await _until_fresh(watches)
        context = index_context(watches)
        return self._html("index.html", request, context)

    async def index_events(self, _request: Request) -> Response:
        """Stream the list, again after each change."""
        watches = list(self.watches.values())

        def number() -> tuple[int, ...]:
            for watch in watches:
                watch.want()
            return tuple(watch.latest.number for watch in watches)

        def render() -> dict[str, Any]:
            regions = self.pages.regions(["pipelines"], index_context(watches))
            return {"title": "penstock", "regions": regions}

        return self._events(number, render)

    async def pipeline(self, request: Request) -> Response:
        """Return one pipeline's page."""
        watch = self._watch(request)
        await _until_fresh([watch])
        page = self._page(request, watch)
        return self._html(page.template, request, page.context)

    async def pipeline_events(self, request: Request) -> Response:
        """Stream one pipeline's page, again after each change."""
        watch = self._watch(request)
        name = watch.config.pipeline.name

        def number() -> tuple[int, ...]:
            watch.want()
            return (
                watch.latest.number,
                *(self.tasks.view(name, kind).number for kind in TaskKind),
                *(self.tasks.view(name, kind).began_us for kind in TaskKind),
            )

        def render() -> dict[str, Any]:
            page = self._page(request, watch)
            return {
                "title": f"{name}: {page.context['state']} – penstock",
                "regions": self.pages.regions(page.regions, page.context),
                "announcements": announcements(page.context),
            }

        return self._events(number, render)

    async def api_pipelines(self, _request: Request) -> Response:
        """Return all pipelines as JSON."""
        watches = list(self.watches.values())
        await _until_fresh(watches)
        found = [_as_dict(watch) for watch in watches]
        return _json({"pipelines": found})

    async def api_pipeline(self, request: Request) -> Response:
        """Return one pipeline as JSON."""
        watch = self._watch(request)
        await _until_fresh([watch])
        return _json(_as_dict(watch))

    async def metrics(self, _request: Request) -> Response:
        """Return the metrics for Prometheus."""
        pipelines = [
            (name, watch.latest)
            for name, watch in self.watches.items()
            if isinstance(watch, PipelineWatch)
        ]
        stages = [
            (name, watch.latest)
            for name, watch in self.watches.items()
            if isinstance(watch, StageWatch)
        ]
        page = await asyncio.to_thread(expose, pipelines, stages)
        return Response(page, media_type=CONTENT_TYPE)

    # --- changing ---------------------------------------------------------------------------------

    async def begin_task(self, request: Request) -> Response:
        """Begin doctor or verify."""
        await self._checked_form(request)
        watch, kind = self._watch(request), self._kind(request)
        name = watch.config.pipeline.name
        await asyncio.to_thread(self.tasks.begin, name, kind, watch.config.path, watch.want)
        return self._back(request, str(kind), f"{kind} has begun")

    async def stop_task(self, request: Request) -> Response:
        """End doctor or verify."""
        await self._checked_form(request)
        watch, kind = self._watch(request), self._kind(request)
        await asyncio.to_thread(self.tasks.stop, watch.config.pipeline.name, kind)
        return self._back(request, str(kind), f"{kind} is asked to stop")

    async def act(self, request: Request) -> Response:
        """Pause the pipeline or let it continue."""
        await self._checked_form(request)
        watch = self._with_source(request)
        word = ACTIONS.get(request.path_params["action"])
        if word is None:
            raise HTTPException(HTTPStatus.NOT_FOUND)
        await asyncio.to_thread(give_action, watch.config, word)
        logger.info("action given", pipeline=watch.config.pipeline.name, word=word)
        watch.look_now()
        outcome = "is asked to pause" if word == "PAUSE" else "is asked to go on"
        return self._back(request, "", f"the pipeline {outcome}")

    async def act_on_table(self, request: Request) -> Response:
        """Add or remove a table, pause it, let it go on, or have its rows copied again."""
        form = await self._checked_form(request)
        watch = self._with_source(request)
        table_request = TABLE_ACTIONS.get(request.path_params["action"])
        if table_request is None:
            raise HTTPException(HTTPStatus.NOT_FOUND)
        table = _table_of(form)
        make, outcome = table_request
        await asyncio.to_thread(make, watch.config, table)
        logger.info("table request made", pipeline=watch.config.pipeline.name, table=str(table))
        watch.look_now()
        return self._back(request, "tables", f"{table} {outcome}")

    async def act_on_consumer(self, request: Request) -> Response:
        """Pause a consumer, or let it continue."""
        form = await self._checked_form(request)
        watch = self._with_source(request)
        found = CONSUMER_ACTIONS.get(request.path_params["action"])
        if found is None:
            raise HTTPException(HTTPStatus.NOT_FOUND)
        make, outcome = found
        consumer = form.get("consumer", "")
        await asyncio.to_thread(make, watch.config, consumer)
        logger.info("consumer asked", pipeline=watch.config.pipeline.name, consumer=consumer)
        watch.look_now()
        return self._back(request, "consumers", f"{consumer} {outcome}")

    async def _checked_form(self, request: Request) -> dict[str, str]:
        """Return the form's fields; refuse a form that is not from one of our own pages."""
        form = await _form(request)
        given = request.headers.get("x-penstock-form") or form.get("secret", "")
        right = self.access.right_form(request.cookies.get(self._cookie, ""), given)
        if not right or not same_origin(request.headers):
            raise HTTPException(HTTPStatus.FORBIDDEN, "this form is not from this page: reload it")
        return form

    def _back(self, request: Request, anchor: str, notice: str) -> Response:
        """Redirect to the page; with JavaScript the page is still there and gets a short text."""
        if "application/json" in request.headers.get("accept", ""):
            return _json({"notice": notice})
        name = request.path_params["name"]
        return RedirectResponse(
            f"/pipelines/{name}" + (f"#{anchor}" if anchor else ""), HTTPStatus.SEE_OTHER
        )

    # --- coming in --------------------------------------------------------------------------------

    async def login_page(self, request: Request) -> Response:
        """Ask for the token."""
        if not self.access.needs_token:
            return RedirectResponse("/", HTTPStatus.SEE_OTHER)
        return self._html("login.html", request, {"wrong": False})

    async def login(self, request: Request) -> Response:
        """Begin a session for a visitor with the token."""
        form = await _form(request)
        if not same_origin(request.headers):
            raise HTTPException(HTTPStatus.FORBIDDEN, "this form is not from this page")
        if not self.access.right_token(form.get("token", "").strip()):
            await asyncio.sleep(0.5)
            logger.warning("wrong token", client=request.client.host if request.client else "")
            return self._html("login.html", request, {"wrong": True}, HTTPStatus.FORBIDDEN)
        answer = RedirectResponse("/", HTTPStatus.SEE_OTHER)
        answer.set_cookie(
            self._cookie,
            self.access.begin_session(),
            httponly=True,
            samesite="strict",
            secure=request.url.scheme == "https",
        )
        return answer

    async def logout(self, request: Request) -> Response:
        """End the session."""
        await self._checked_form(request)
        self.access.end_session(request.cookies.get(self._cookie, ""))
        answer = RedirectResponse("/login", HTTPStatus.SEE_OTHER)
        answer.delete_cookie(self._cookie, httponly=True, samesite="strict")
        return answer

    # --- answers ----------------------------------------------------------------------------------

    def _watch(self, request: Request) -> AnyWatch:
        name = request.path_params["name"]
        if name not in self.watches:
            raise HTTPException(HTTPStatus.NOT_FOUND, "no pipeline of this name is shown here")
        return self.watches[name]

    def _with_source(self, request: Request) -> PipelineWatch:
        """Return the pipeline of a request; refuse one with [stage], which lacks this button."""
        watch = self._watch(request)
        if isinstance(watch, StageWatch):
            raise HTTPException(HTTPStatus.NOT_FOUND, "a pipeline with [stage] has no such button")
        return watch

    def _kind(self, request: Request) -> TaskKind:
        try:
            kind = TaskKind(request.path_params["kind"])
        except ValueError as error:
            raise HTTPException(HTTPStatus.NOT_FOUND) from error
        if kind is not TaskKind.DOCTOR:
            self._with_source(request)
        return kind

    def _page(self, request: Request, watch: AnyWatch) -> Page:
        name = watch.config.pipeline.name
        tasks = {kind: self.tasks.view(name, kind) for kind in TaskKind}
        return page_of(watch, tasks, self._secret(request))

    def _secret(self, request: Request) -> str:
        return self.access.form_secret(request.cookies.get(self._cookie, ""))

    def _html(
        self,
        template: str,
        request: Request,
        context: Mapping[str, Any],
        code: HTTPStatus = HTTPStatus.OK,
    ) -> Response:
        more = {"secret": self._secret(request), "can_log_out": self.access.needs_token}
        return HTMLResponse(self.pages.page(template, **{**more, **context}), code)

    def _events(
        self, number: Callable[[], tuple[int, ...]], render: Callable[[], dict[str, Any]]
    ) -> Response:
        return StreamingResponse(
            stream(number, render, self._ended), media_type="text/event-stream"
        )

    # --- errors -----------------------------------------------------------------------------------

    async def on_http(self, request: Request, error: Exception) -> Response:
        """Answer a request for a missing page, or with a refused form."""
        assert isinstance(error, HTTPException)
        code = HTTPStatus(error.status_code)
        shown = {"code": str(int(code)), "error": str(error.detail), "hint": ""}
        return self._error(request, shown, code)

    async def on_error(self, request: Request, error: Exception) -> Response:
        """Answer a request that could not be carried out."""
        assert isinstance(error, PenstockError)
        return self._error(request, error.as_dict(), HTTPStatus.CONFLICT)

    async def on_defect(self, request: Request, error: Exception) -> Response:
        """Answer a request that raised an unexpected exception with its type; log it for the
        diagnostics.
        """
        logger.error("web request failed", path=request.url.path, exc_info=error)
        text = f"unexpected {type(error).__name__}"
        shown = {"code": "PS99", "error": text, "hint": "This is a bug in penstock: report it."}
        return self._error(request, shown, HTTPStatus.INTERNAL_SERVER_ERROR)

    def _error(self, request: Request, shown: dict[str, Any], code: HTTPStatus) -> Response:
        wants_json = "application/json" in request.headers.get("accept", "")
        if wants_json or request.url.path.startswith("/api/"):
            return _json(shown, code)
        # If a button was pressed, the answer links to its page.
        name = request.path_params.get("name", "")
        context = {
            "error": shown,
            "phrase": code.phrase,
            "pipeline": name if name in self.watches else "",
        }
        return self._html("error.html", request, context, code)


def _as_dict(watch: AnyWatch) -> dict[str, Any]:
    """Return a pipeline's reading as JSON."""
    if isinstance(watch, StageWatch):
        return stage_dict(watch.latest, watch.config)
    return as_dict(watch.latest, watch.config)


def _json(value: Any, code: HTTPStatus = HTTPStatus.OK) -> Response:
    return Response(msgspec.json.encode(value, enc_hook=str), code, media_type="application/json")


async def _until_fresh(watches: Sequence[AnyWatch]) -> None:
    """Ask for new readings and wait for them: a page without JavaScript is seen only once."""
    numbers = [(watch, watch.latest.number) for watch in watches]
    stale = [(watch, number) for watch, number in numbers if watch.want()]
    for _ in range(round(FRESH_WAIT_MAX_S / FRESH_POLL_S)):
        if all(watch.latest.number != number for watch, number in stale):
            return
        await asyncio.sleep(FRESH_POLL_S)


async def _form(request: Request) -> dict[str, str]:
    """Return the fields of a form; the first value of each name."""
    body = bytearray()
    async for piece in request.stream():
        body += piece
        if len(body) > FORM_BYTES_MAX:
            raise HTTPException(HTTPStatus.REQUEST_ENTITY_TOO_LARGE)
    found = parse_qs(body.decode("utf-8", errors="replace"), keep_blank_values=True)
    return {name: values[0] for name, values in found.items()}


def _table_of(form: Mapping[str, str]) -> TableName:
    """Return the table that a form is for: in two fields, or typed as schema.table."""
    schema, table = form.get("schema", ""), form.get("table", "")
    if not schema:
        schema, _, table = form.get("name", "").strip().partition(".")
    if not schema or not table:
        raise NoTableNamed(
            f"{form.get('name', '')!r} is not schema.table",
            hint="Write the schema (on MySQL and MariaDB the database), a dot, and the table.",
        )
    return TableName(schema, table)


async def static(request: Request) -> Response:
    """Return our own style sheet, script or icon, because pages load nothing from other sites."""
    name = request.path_params["file"]
    if name not in STATIC:
        raise HTTPException(HTTPStatus.NOT_FOUND)
    data = files("penstock.web").joinpath("static", name).read_bytes()
    return Response(data, media_type=STATIC[name], headers={"cache-control": "no-cache"})


LOOK_INTERVAL_S = 0.2
ALIVE_INTERVAL_S = 15.0
LARGE_BYTES = 60_000  # a region of this size is sent seldom: hundreds of tables
LARGE_EVERY = 5

Number = Callable[[], tuple[int, ...]]
Render = Callable[[], dict[str, Any]]


@dataclass(slots=True)
class Sent:
    """Regions and announcements that a browser has, so that only changed ones are sent."""

    regions: dict[str, int] = field(default_factory=dict)
    announced: dict[str, str] = field(default_factory=dict)
    count: int = 0

    def new(self, page: dict[str, Any]) -> dict[str, Any]:
        """Return the page's regions and announcements that the browser does not have yet."""
        self.count += 1
        regions = {}
        for name, html in page["regions"].items():
            seldom = len(html) > LARGE_BYTES and self.count % LARGE_EVERY != 1
            if not seldom and self.regions.get(name) != hash(html):
                self.regions[name] = hash(html)
                regions[name] = html
        announced = {
            name: text
            for name, text in page.get("announcements", {}).items()
            if self.announced.get(name) != text
        }
        self.announced.update(announced)
        return {"title": page["title"], "regions": regions, "announcements": announced}


async def stream(number: Number, render: Render, ended: Callable[[], bool]) -> AsyncIterator[bytes]:
    """Yield events until the server ends.

    Args:
        number: Returns a value that changes whenever there may be something new.
        render: Returns the page as it is now; it is called on another thread.
        ended: Returns whether to end.
    """
    sent, quiet_s = Sent(), 0.0
    seen: tuple[int, ...] = ()
    yield b"retry: 2000\n\n"
    while not ended():
        now = number()
        if now != seen:
            seen, quiet_s = now, 0.0
            try:
                page = await asyncio.to_thread(render)
            except Exception as error:
                logger.error("page not drawn", exc_info=error)
                said = f"this page cannot be drawn: unexpected {type(error).__name__}"
                yield b"event: broken\ndata: " + msgspec.json.encode(said) + b"\n\n"
                return
            yield b"event: page\ndata: " + msgspec.json.encode(sent.new(page)) + b"\n\n"
        elif quiet_s >= ALIVE_INTERVAL_S:
            quiet_s = 0.0
            yield b": alive\n\n"
        await asyncio.sleep(LOOK_INTERVAL_S)
        quiet_s += LOOK_INTERVAL_S
