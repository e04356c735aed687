"""Part 7 of the flow: from records of runs to numbers people read."""
