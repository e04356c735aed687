"""The paper's data sets as problems of `flic run`, one file each."""
