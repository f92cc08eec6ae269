"""The gRPC surface, the journal and the talk with systemd."""
