"""The paper's linear theory: algo:FLIC-FedRep-linreg, theorem:1, and its data."""
