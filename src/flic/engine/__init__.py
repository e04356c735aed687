"""Part 6 of the flow: who runs the two halves of an method, and when."""
