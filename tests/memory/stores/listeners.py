"""Servers that note what arrives, and ask for a password as an attacker's would."""

import contextlib
import socket
import threading

_CLEAR = b"R\0\0\0\x08\0\0\0\x03"  # PostgreSQL's request for a password in clear
_MD5 = b"R\0\0\0\x0c\0\0\0\x05salt"
_ASKS = {"clear": _CLEAR, "md5": _MD5, "nothing": b""}
_ENCRYPTION = (80877103, 80877104)  # codes of requests for TLS and for GSSAPI


class Listener:
    """Where it listens, and all that arrived there, connections counted too."""

    def __init__(self, port):
        self.port, self.n_connections, self.arrived = port, 0, b""

    @property
    def is_untouched(self):
        return self.n_connections == 0 and not self.arrived


@contextlib.contextmanager
def listener(asks="nothing"):
    """Listen at 127.0.0.1; with `asks` "clear" or "md5" for such a password, as PostgreSQL does."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        heard = Listener(server.getsockname()[1])
        threading.Thread(target=_serve, args=(server, heard, _ASKS[asks]), daemon=True).start()
        try:
            yield heard
        finally:
            with contextlib.suppress(OSError):
                server.shutdown(socket.SHUT_RDWR)  # ends accept


def _serve(server, heard, answer):
    with contextlib.suppress(OSError):
        while True:
            connection, _ = server.accept()
            heard.n_connections += 1
            threading.Thread(target=_hear, args=(connection, heard, answer), daemon=True).start()


def _hear(connection, heard, answer):
    with connection, contextlib.suppress(OSError):
        connection.settimeout(5)
        while said := connection.recv(4096):
            heard.arrived += said
            if said.startswith(b"p"):  # the password
                return
            code = int.from_bytes(said[4:8], "big")
            connection.sendall(b"N" if code in _ENCRYPTION else answer)
