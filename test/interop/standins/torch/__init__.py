"""Stands in for torch: nixl._api and the connector name these types and never use them on plain addresses."""


class Tensor:
    pass


class device:
    pass
