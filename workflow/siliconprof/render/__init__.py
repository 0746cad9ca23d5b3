"""The tables of a run as one page: exhibits, six drawers, and what writes them down."""
