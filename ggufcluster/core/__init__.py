"""Values and decisions: no sockets, files, clock, environment or printing."""
