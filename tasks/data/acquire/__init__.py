"""How data sets come here: mirrors, the hub, apt, pip and web addresses."""
