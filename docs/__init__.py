"""The pages, and what makes them: hooks of the site's build, and the tables of results."""
