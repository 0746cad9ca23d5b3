"""The report: one module per table or figure family, and the page that holds them."""
