"""Recipes: loaded from their file, shipped to workers, suggested for raw data.

In: a recipe, its file, or a folder of raw data. Out: the recipe's objects in a process of any
machine; the text of a new recipe.
"""
