"""``nearwise serve`` and ``nearwise key``: HTTP service of a model."""

import gc
import re
import socket
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from nearwise.cli import options
from nearwise.cli.console import reported, say, show
from nearwise.cli.models import require_model
from nearwise.cli.outputs import holds_targets
from nearwise.conditions import require_extra

_PACKAGES = ("fastapi", "uvicorn", "prometheus_client", "fastapi_offline")
_UNITS = {"": 1, "B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30}
_TO_DRAIN = 5  # seconds beyond the deadline to finish requests on shutdown


@reported
def serve(
    model: options.ModelArgument,
    host: Annotated[
        str, typer.Option(metavar="ADDRESS", help="Address to listen on.")
    ] = "127.0.0.1",
    port: Annotated[
        int, typer.Option(min=0, max=65535, help="Port to listen on. 0 takes a free one.")
    ] = 8080,
    keys: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="File of access keys, made by 'nearwise key'. Required if --host can be reached "
            "from other machines.",
        ),
    ] = None,
    allow_host: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="Another host name that requests may use, such as that of a proxy. May be "
            "repeated.",
        ),
    ] = None,
    allow_origin: Annotated[
        list[str] | None,
        typer.Option(
            metavar="ORIGIN",
            help="Origin whose web pages may call the service, such as http://localhost:3000. May "
            "be repeated.",
        ),
    ] = None,
    read_only: Annotated[
        bool, typer.Option("--read-only", help="Refuse all changes of the model.")
    ] = False,
    follow: Annotated[
        bool, typer.Option("--follow", help="Apply changes by other processes within a second.")
    ] = False,
    max_queue: Annotated[
        int, typer.Option(min=1, metavar="N", help="Requests that may wait. Others get HTTP 429.")
    ] = 64,
    max_rows: Annotated[
        int, typer.Option(min=1, max=65536, metavar="N", help="Maximum rows per request.")
    ] = 4096,
    max_body: Annotated[
        str, typer.Option(metavar="SIZE", help="Maximum bytes per request: 500KiB, 8MiB.")
    ] = "8MiB",
    deadline: Annotated[
        float,
        typer.Option(min=0.01, max=86400, metavar="SECONDS", help="Time limit for an answer."),
    ] = 10.0,
    no_page: Annotated[
        bool, typer.Option("--no-page", help="Serve programs only, without the page for browsers.")
    ] = False,
    store: options.StoreOption = None,
    quiet: options.QuietOption = False,
) -> None:
    """Serve a model over HTTP: predictions, explanations, changes of its rows, review of labels.

    The model is a classifier or a regressor. A browser shows a page at this address. It shows
    queries with their neighbors, a map of the training rows, and a review of labels or targets. For
    classes it also shows how far predictions can be trusted. A model of several targets answers
    for all at once. Each has a service of its own at /targets/NAME.

    Programs use plain JSON (/predict, /explain, /rows, /review, ...) or the Open Inference Protocol
    (/v2). /docs describes both, and clients are generated from /openapi.json. Requests that wait
    are predicted in one batch. Changes are saved to disk before the response, and 'nearwise
    history' lists them. Needs the extra "serve".

    Without --keys, anyone on this machine may do everything, and no one else anything. Web pages of
    other origins are refused, except those of --allow-origin. On SIGTERM or Ctrl-C, requests in
    progress are completed first.

    [bold]Examples[/bold]
      nearwise serve iris.model
      curl -s localhost:8080/predict --json '{"rows": [{...}]}'
      nearwise key laptop --scope write --keys keys.json
      nearwise serve iris.model --host 0.0.0.0 --keys keys.json
    """
    require_model(model, several=True)
    n_bytes = _bytes(max_body)
    require_extra("nearwise serve", "serve", *_PACKAGES)
    import torch
    import uvicorn

    from nearwise.cli.several import models_in
    from nearwise.estimators.live_target import live_kind
    from nearwise.functional.threads import coarse_threads
    from nearwise.serve import Limits, Service, create_app, create_targets_app, read_keys
    from nearwise.serve.app import model_name
    from nearwise.serve.connections import connections, most_connections, raise_descriptor_limit
    from nearwise.serve.guards import LOOPBACK, checked_origins

    known = [] if keys is None else read_keys(keys)
    if host not in LOOPBACK and not known:
        raise ValueError(
            f"--host {host} can be reached from elsewhere, where anyone could read and change the "
            "model. Make a key ('nearwise key NAME --keys keys.json') and give --keys keys.json."
        )
    origins = checked_origins(allow_origin or (), has_keys=bool(known))
    # Against foreign web pages (DNS rebinding): keys, or else a check of the host name.
    hosts = None if known and not allow_host else {*LOOPBACK, host, *(allow_host or [])}
    most, at_one_time = most_connections(raise_descriptor_limit())
    listening = _listen(host, port)
    torch.set_num_threads(max(1, coarse_threads() - 1))  # leave one core for the connections
    if not quiet:
        say(f"Opening {model} ...")

    def service_of(folder: Path) -> Service:
        return Service(
            # half the deadline for another process's change
            live_kind(folder)(folder, wait=deadline / 2, trusted_store=store),
            Limits(max_queue, max_rows, n_bytes, deadline),
            read_only=read_only,
            follow=follow,
        )

    name = model_name(model.resolve().name)
    access: Any = {"keys": known, "hosts": hosts, "allow_origins": origins, "page": not no_page}
    if holds_targets(model):
        each = {target: service_of(one) for target, one in models_in(model).items()}
        app, protocol = create_targets_app(each, name=name, **access), ""
    else:
        each = {name: service_of(model)}
        app = create_app(each[name], name=name, **access)
        protocol = f"; Open Inference Protocol name: {name}"
    n_rows = next(iter(each.values())).live.model.fitted_.n_remembered

    class Server(uvicorn.Server):
        async def startup(self, sockets: list[socket.socket] | None = None) -> None:
            await super().startup(sockets)
            gc.collect()
            gc.freeze()  # exclude loaded objects from collections of 0.2 s
            if not quiet:  # from now on Ctrl-C and SIGTERM finish open requests
                port = listening.getsockname()[1]
                where = f"http://{f'[{host}]' if ':' in host else host}:{port}"
                page = "" if no_page else "open it in a browser; "
                say(
                    f"Serving {n_rows} rows at {where} ({page}{where}/docs describes it for "
                    f"programs{protocol}). Ctrl-C stops."
                )

    config = uvicorn.Config(
        app,
        log_level="warning",
        access_log=False,
        server_header=False,
        http=connections(most, patience=deadline),
        ws="none",
        backlog=at_one_time,
        timeout_graceful_shutdown=int(deadline) + _TO_DRAIN,
    )
    Server(config).run(sockets=[listening])


@reported
def key(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Who or what uses the key.")],
    keys: Annotated[Path, typer.Option(metavar="FILE", help="Keys file, created if missing.")],
    scope: Annotated[
        Literal["read", "write", "admin"],
        typer.Option(
            help="read: predict and look. write: also change the model's rows. admin: also compact "
            "and refresh."
        ),
    ] = "read",
    quiet: options.QuietOption = False,
) -> None:
    """Make an access key for 'nearwise serve', and print it once.

    The file keeps only the SHA-256 hash of the key. To revoke a key, delete its entry and restart
    the service.

    [bold]Examples[/bold]
      nearwise key laptop --scope write --keys keys.json
    """
    require_extra("nearwise key", "serve", *_PACKAGES)
    from nearwise.serve import make_key

    made = make_key(keys, name, scope)
    show(made)
    if not quiet:
        say(f"{name} may {scope}; send it as 'Authorization: Bearer KEY'. It is kept nowhere else.")


def _bytes(size: str) -> int:
    found = re.fullmatch(r"(\d{1,12})\s*(B|KiB|MiB|GiB)?", size.strip())
    if not found or not int(found[1]):
        raise ValueError(f"--max-body {size}: give a number of bytes, such as 500KiB or 8MiB.")
    return int(found[1]) * _UNITS[found[2] or ""]


def _listen(host: str, port: int) -> socket.socket:
    """Open the socket, before any slow loading."""
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        return socket.create_server((host, port), family=family)
    except OSError as error:
        raise OSError(
            f"Cannot listen at {host}, port {port}: {error.strerror or error}. Choose another "
            "--port (0 takes a free one) or --host."
        ) from error
