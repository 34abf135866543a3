"""What pyproject.toml cannot say: configurations, of a clone's `experiments`, are installed too."""

import setuptools

setuptools.setup(
    packages=[
        *setuptools.find_packages(include=["bertjax*", "data_pipelines*"]),
        "bertjax.experiments",  # its own files alone, which are the configurations
    ],
    package_dir={"bertjax.experiments": "experiments"},
)
