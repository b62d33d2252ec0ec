"""From the gateway to the rows: pages, merged in order, and where the client reads on."""
