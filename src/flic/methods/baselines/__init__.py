"""Methods that FLIC is compared with."""
