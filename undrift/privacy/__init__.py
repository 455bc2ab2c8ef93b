"""Client-level differential privacy: what clients send is clipped, noise is added to the sum, epsilon is accounted for."""

from undrift.privacy.clipping import PrivateWire, clip_jointly, noise_by_secret, system_noise
from undrift.privacy.settings import Privacy, make_privacy

__all__ = ["Privacy", "PrivateWire", "clip_jointly", "make_privacy", "noise_by_secret", "system_noise"]
