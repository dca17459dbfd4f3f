"""The default solver, `ExchangePursuit`, and its parts."""
