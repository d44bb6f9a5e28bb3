"""Schedule: who runs next, in which slot. Pure decisions; one loop applies them."""
