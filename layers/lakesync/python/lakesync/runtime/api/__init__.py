"""The HTTP routes, one module for each route family; each Lambda function serves one of them.

Routes are made around the service that they call, so that a module can be imported, and the whole
API documented, where no service exists. Bodies go to `lakesync.wire` as raw bytes: what they may
hold is documented here (`schemas`) and enforced there.
"""
