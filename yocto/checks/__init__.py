"""Checks of the Yocto layer: what can be said of the recipes by themselves, and what BitBake says of them."""
