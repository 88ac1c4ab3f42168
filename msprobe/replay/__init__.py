"""acc_check: each recorded API again, on the device and against a float64 reference."""
