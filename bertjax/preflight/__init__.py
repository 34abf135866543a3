"""Will it fit, how fast will it be: programs compiled for devices that are not here."""
