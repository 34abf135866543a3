"""The mesh and its table of rules, hosts, what feeds the devices, signals."""
