"""List data sets, fetch them, verify them and show their contents; compute features of images.

python scripts/data.py list
python scripts/data.py fetch NAME [NAME ...] [--root FOLDER] [data.KEY=VALUE ...]
python scripts/data.py verify NAME [the same options]   compare files with checksums; contacts no web address and no hub
python scripts/data.py show NAME [the same options]     sizes, source and a few test records
python scripts/data.py features --path FOLDER [--device cuda --amp] [--check]    of the images of VQA v2; see below

    --root     folder for downloads (default: SPARSE_ATTENTION_DATA, otherwise data/cache)
    data.KEY   an option of the data set, as for scripts/train.py, such as data.text=review data.label=stars;
               data.mirror=FOLDER of local copies, for data sets that are read from a mirror (default: SPARSE_ATTENTION_MIRROR);
               data.path: file or folder of a data set that you downloaded by hand, or of your own data

Features of a 14 x 14 grid go into FOLDER/features (99 GB for all 123,287 images), completely or not at all. FOLDER has
train2014.zip and val2014.zip (or the folders) and the JSON files.
    --weights  file with a state dict of resnet152 (default: torchvision's, downloaded)
    --size     pixels per side (default 448); --batch-size: images at a time (default 16); --amp: half precision
    --check    verify the checksums of the features and stop

Examples: python scripts/data.py fetch libreoffice_help easy_vqa; python scripts/data.py show imdb data.path=aclImdb.tar.gz;
          python scripts/data.py show table data.path=reviews.csv data.text=review data.label=stars
Next: python scripts/train.py task=TASK data=NAME
"""

from _entry import commands

main = commands(globals(), "tasks.commands.data", "list_", "fetch", "verify", "show", "features")
