"""What happens to a message on the wire: a codec encodes the vectors that clients send and decodes them at the server.

The bytes that are counted, and on real nodes sent, are those of the encoded payload.  Both sides run the same code.
"""

from undrift.codecs.codec import Codec, CodecWire, codec, make_codec, make_wire
from undrift.codecs.compressors import Cast, Quantised, RandomK, TopK

__all__ = ["Cast", "Codec", "CodecWire", "Quantised", "RandomK", "TopK", "codec", "make_codec", "make_wire"]
