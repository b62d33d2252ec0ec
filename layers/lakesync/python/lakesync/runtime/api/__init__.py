"""The HTTP routes, one module for each route family; each Lambda function serves one of them.

Routes are built around the service that they call, so that a module can be imported, and the whole
API documented, without a service. Bodies are passed to `lakesync.wire` as raw bytes: their contents
are documented here (`schemas`, which only `document` loads) and enforced there.
"""
