"""Tests run side by side, so each keeps to one thread."""

import torch

torch.set_num_threads(1)
