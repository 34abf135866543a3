"""Mesh, sharding rules, processes, host-to-device feed and signals."""
