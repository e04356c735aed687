"""What every test shares."""

import torch

# The tests are small and run side by side; more threads only make them wait for each other.
torch.set_num_threads(1)
