-- Identity: which file this store is, so that workers notice when they are started on a copy.

CREATE TABLE duly_store (
    -- The inode of the file that workers may use; NULL until the first one has started.
    inode INTEGER
);

INSERT INTO duly_store VALUES (NULL);
