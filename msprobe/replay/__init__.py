"""acc_check: replay each API of a dump on a device and judge it against a float64 reference."""
