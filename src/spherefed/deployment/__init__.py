"""A federation across the machines of several sites: deployment folder, handshake, site and server."""
