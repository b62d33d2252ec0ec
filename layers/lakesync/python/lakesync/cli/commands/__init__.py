"""The commands, one module each; `lakesync.cli.app` lists them."""
