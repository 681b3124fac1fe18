"""Ends with 0 if the health page answers 200: over TLS, or over plain HTTP if the port does not speak TLS.

The certificate is not verified: it is a port of the same container.
"""

import ssl
import sys
from http.client import HTTPConnection, HTTPException, HTTPSConnection

PORT = int(sys.argv[1]) if len(sys.argv) > 1 else 8558
TIMEOUT_S = 2


def is_healthy(connection: HTTPConnection) -> bool:
    """Whether the page answers 200."""
    try:
        connection.request("GET", "/healthz")
        return connection.getresponse().status == 200
    except (OSError, HTTPException):
        return False


context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
context.check_hostname = False
context.verify_mode = ssl.CERT_NONE
over_tls = HTTPSConnection("127.0.0.1", PORT, timeout=TIMEOUT_S, context=context)
plain = HTTPConnection("127.0.0.1", PORT, timeout=TIMEOUT_S)
sys.exit(not any(map(is_healthy, (over_tls, plain))))
