"""The readers of data sets; importing this package registers them all with `undrift.data.registry`.

cifar               cifar10, cifar100
digits              the digits of scikit-learn
federated_vision    gldv2 by photographer, inaturalist by user: image files
har                 hapt: smartphone signals by person
libsvm              a9a, w8a, mushrooms; any file in LIBSVM's format
mnist               mnist, fashion-mnist, mnist-writers
shakespeare         shakespeare by role, tinyshakespeare by speaker
stackoverflow       sentences by user
synthetic           Synthetic(a, b)
uci                 heart by hospital, parkinsons by patient, adult
"""

from importlib import import_module
from pkgutil import iter_modules

for _module in iter_modules(__path__, f"{__name__}."):
    import_module(_module.name)
