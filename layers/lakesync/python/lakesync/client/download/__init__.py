"""From the gateway to the rows: pages, merged in order, and the position of the next."""
