# One pack: with two, git lists them in the order of readdir, which no file system promises.
export GIT_AUTHOR_NAME=a GIT_AUTHOR_EMAIL=a@b.invalid GIT_COMMITTER_NAME=a GIT_COMMITTER_EMAIL=a@b.invalid
export GIT_AUTHOR_DATE='2024-01-02T03:04:05Z' GIT_COMMITTER_DATE='2024-01-02T03:04:05Z'
export GIT_CONFIG_NOSYSTEM=1 GIT_CONFIG_COUNT=4 GIT_CONFIG_KEY_0=init.defaultBranch GIT_CONFIG_VALUE_0=main \
    GIT_CONFIG_KEY_3=gc.cruftPacks GIT_CONFIG_VALUE_3=false \
    GIT_CONFIG_KEY_1=pack.threads GIT_CONFIG_VALUE_1=1 GIT_CONFIG_KEY_2=gc.auto GIT_CONFIG_VALUE_2=0

setup() {
    git init -q origin
    cd origin
    for i in $(seq 1 60); do
        mkdir -p "dir$((i % 7))"
        printf 'line one of %s\nline two\nline three\n' "$i" > "dir$((i % 7))/file$i.txt"
    done
    git add -A
    git commit -qm 'first'
    for i in 1 2 3 4 5; do
        echo "change $i" >> dir1/file1.txt
        git commit -qam "change $i"
    done
    cd ..
}

work() {
    git clone -q origin clone
    cd clone
    git checkout -q -b topic
    echo topic >> dir2/file2.txt
    git mv dir3 dir3-renamed
    git rm -q dir4/file4.txt
    git commit -qam 'topic work'
    git checkout -q main
    echo main >> dir5/file5.txt
    git commit -qam 'main work'
    git checkout -q topic
    git rebase -q main
    git gc -q
    git status --short
    git fsck --strict
    test -z "$(git status --short)"
}

check() {
    cd clone
    git fsck --strict
    test -z "$(git status --short)"
    test "$(git log --oneline | wc -l)" = 8
}
