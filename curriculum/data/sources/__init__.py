"""Where records lie: files of any format as one sequence of addressed JSON values.

`files.py` finds files and knows their digests; `unpack.py` turns a file of another format into
lines once; `lines.py` indexes lines; `Source` puts several files together. Adding a format is one
function in `unpack.py`.
"""

from curriculum.data.sources.files import digest, expand, known_digest, stats
from curriculum.data.sources.lines import Address
from curriculum.data.sources.source import Source
from curriculum.data.sources.unpack import without_nulls

__all__ = ["Address", "Source", "digest", "expand", "known_digest", "stats", "without_nulls"]
