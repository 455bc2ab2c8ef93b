"""`python -m undrift.cli`"""

from undrift.cli import main

main()
