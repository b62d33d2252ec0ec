"""What SQL databases share as sources, and for declared statements."""
